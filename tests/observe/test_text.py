"""Names from outside on terminals, logs and plots."""

from __future__ import annotations

import warnings

import pytest

from broker_filter.observe.text import aligned_table, markdown_table, plot_text, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("OGLE-2019-BLG-0001", "OGLE-2019-BLG-0001"),
        ("β Lyr, 星", "β Lyr, 星"),
        ("a\x1b[2Jb", "a?[2Jb"),
        ("a\r\nb\tc\0", "a??b?c?"),
        ("\u202eevil\u2028line", "?evil?line"),
        ("\ud800", "?"),
        (17, "17"),
    ],
)
def test_what_does_not_print_becomes_a_question_mark(text, shown):
    assert printable(text) == shown


def test_a_long_text_is_cut_and_says_so():
    assert printable("x" * 100, 10) == "xxxxxxx..."
    assert printable("x" * 10, 10) == "x" * 10


@pytest.mark.parametrize("name", ["$", "$x$ and $y", r"$\frac{", "a\x07$_$", "$$"])
def test_a_plot_shows_a_dollar_as_it_is(name, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasAgg(figure)
    title = figure.suptitle(plot_text(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(tmp_path / "x.png")
    assert title._preprocess_math(title.get_text()) == (printable(name), False)


def test_a_markdown_table_has_a_rule_below_its_head():
    rows = (row for row in [("1", 2.5), ("", "b")])
    assert markdown_table(("one", "two"), rows).splitlines() == [
        "| one | two |",
        "| --- | --- |",
        "| 1 | 2.5 |",
        "|  | b |",
    ]


def test_columns_of_a_table_are_as_wide_as_their_widest_cell():
    rows = [("a star", 1, "x"), ("a heading wider than all columns",), ("b", 12_345, "")]
    assert aligned_table(("", "n", "what"), rows).splitlines() == [
        "            n  what",
        "a star      1     x",
        "a heading wider than all columns",
        "b       12345",
    ]


def test_a_table_without_rows_is_its_head():
    assert aligned_table(("star", "K"), []) == "star  K"
