"""Packets in files: what goes out is what came in, whatever is around it."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import json
import tarfile
import tracemalloc
import zlib
from decimal import Decimal
from functools import cache

import fastavro
import pytest

from broker_filter.replay.event_time import EventTimes
from broker_filter.replay.files import MAX_READ_BYTES, PacketFile, is_packets
from broker_filter.schemas import MAX_MESSAGE_BYTES
from tests import build

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = {
    "type": "record",
    "name": "ztf.alert",
    "fields": [
        {"name": "objectId", "type": "string"},
        {
            "name": "candidate",
            "type": {
                "type": "record",
                "name": "candidate",
                "fields": [{"name": "jd", "type": "double"}, {"name": "magpsf", "type": "float"}],
            },
        },
        {"name": "cutout", "type": "bytes"},
    ],
}
event_time = EventTimes()
JD, MJD_TAI = 2460000.5, 60000.0 + 37 / 86400  # 37 s: TAI - UTC since 2017


def record(number: int) -> dict:
    candidate = {"jd": JD + number, "magpsf": 17.5}
    return {"objectId": f"ZTF{number}", "candidate": candidate, "cutout": bytes(50)}


@cache  # a container's mark between blocks is random
def packet(*numbers: int, codec: str = "null") -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, SCHEMA, [record(n) for n in numbers], codec=codec)
    return file.getvalue()


def tar(members: dict[str, bytes], mode: str = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def read(tmp_path, content: bytes, name: str = "x.avro"):
    path = tmp_path / name
    path.write_bytes(content)
    said: list[str] = []
    assert is_packets(path)
    return list(PacketFile(path, event_time).read(said.append)), said


class TestSinglePackets:
    @pytest.mark.parametrize("codec", ["null", "deflate"])
    def test_a_container_of_one_goes_out_byte_for_byte(self, tmp_path, codec):
        content = packet(3, codec=codec)
        [one], said = read(tmp_path, content)
        assert one.value == content
        assert one.time == pytest.approx(MJD_TAI + 3, abs=1e-9)
        assert (one.key, one.headers, said) == (None, (), [])

    def test_gzip_around_it_stays(self, tmp_path):
        content = gzip.compress(packet(1))
        [one], _ = read(tmp_path, content, "x.avro.gz")
        assert one.value == content

    def test_json(self, tmp_path):
        content = json.dumps({"diaSource": {"midpointMjdTai": 61000.25}}).encode()
        [one], _ = read(tmp_path, content, "x.json")
        assert (one.value, one.time) == (content, 61000.25)

    def test_json_lines_one_message_a_line(self, tmp_path):
        lines = [json.dumps({"candidate": {"jd": JD + n}}).encode() for n in range(3)]
        out, said = read(tmp_path, b"\n".join([*lines, b"{broken"]), "x.jsonl")
        assert [one.value for one in out] == lines
        assert len(said) == 1
        assert "x.jsonl:4" in said[0]

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b'{"a": 1}', "no_event_time"),
            (b'{"diaSource": {"midpointMjdTai": 1480360995}}', "time_out_of_range"),
            (packet(1)[:-20], "x.json"),
            (b"\0\0\0\x04\x4dabc", "x.json"),
        ],
    )
    def test_a_packet_without_a_time_is_reported_and_passed_over(self, tmp_path, content, why):
        out, said = read(tmp_path, content, "x.json")
        assert out == []
        assert len(said) == 1
        assert why in said[0]
        assert "x.json" in said[0]


class TestContainersOfMany:
    @pytest.mark.parametrize("codec", ["null", "deflate"])
    def test_each_record_becomes_a_container_with_the_same_content(self, tmp_path, codec):
        out, said = read(tmp_path, packet(5, 6, 7, codec=codec))
        assert [list(fastavro.reader(io.BytesIO(one.value))) for one in out] == [
            [record(n)] for n in (5, 6, 7)
        ]
        assert [one.time for one in out] == pytest.approx([MJD_TAI + n for n in (5, 6, 7)])
        assert not said

    def test_a_container_too_long_for_a_message_is_read_block_by_block(self, tmp_path):
        many = [record(n) | {"cutout": bytes(MAX_MESSAGE_BYTES // 10)} for n in range(20)]
        file = io.BytesIO()
        fastavro.writer(file, SCHEMA, many)
        out, said = read(tmp_path, file.getvalue())
        assert [one.time for one in out] == pytest.approx([MJD_TAI + n for n in range(20)])
        assert not said

    @pytest.mark.parametrize(
        ("codec", "data", "why"),
        [
            ("deflate", zlib.compress(bytes(MAX_READ_BYTES + 1), wbits=-15), "too_large"),
            ("bzip2", bz2.compress(b"x"), "codec 'bzip2' is not read: write it with one of"),
        ],
    )
    @pytest.mark.parametrize("before", [0, MAX_MESSAGE_BYTES])
    def test_a_block_that_cannot_be_read_is_reported(self, tmp_path, codec, data, why, before):
        schema = json.dumps(SCHEMA).encode()
        content = build.container(schema, (1, data), codec=codec) + bytes(before)
        out, said = read(tmp_path, content)
        assert out == []
        assert len(said) == 1
        assert "x.avro" in said[0]
        assert why in said[0]

    def test_a_schema_that_is_none_is_reported_with_its_file(self, tmp_path):
        for schema in (b"no schema", b'{"type":"array","items":' * 100 + b'"int"' + b"}" * 100):
            out, said = read(tmp_path, build.container(schema, (1, b"\0")))
            assert out == []
            assert len(said) == 1
            assert "x.avro: bad_schema" in said[0]

    def test_an_empty_container_gives_nothing(self, tmp_path):
        assert read(tmp_path, packet())[0] == []

    def test_a_damaged_block_ends_the_file_and_is_reported(self, tmp_path):
        content = packet(1, 2)
        out, said = read(tmp_path, content[:-8])
        assert len(out) <= 2
        assert len(said) == 1


class TestTar:
    @pytest.mark.parametrize("mode", ["w", "w:gz"])
    def test_members_go_out_byte_for_byte_and_nothing_is_unpacked(self, tmp_path, mode):
        members = {f"night/{n}.avro": packet(n) for n in range(4)}
        out, said = read(tmp_path, tar(members, mode), "night.tar.gz")
        assert [one.value for one in out] == list(members.values())
        assert [path.name for path in tmp_path.iterdir()] == ["night.tar.gz"]
        assert not said

    def test_a_tar_gz_with_one_member_is_no_packet_itself(self, tmp_path):
        [one], _ = read(tmp_path, tar({"1.avro": packet(1)}, "w:gz"), "a.tgz")
        assert one.value == packet(1)

    def test_a_damaged_member_is_reported_and_the_others_go_out(self, tmp_path):
        members = {"1.avro": packet(1), "2.avro": packet(2)[:-9], "notes.txt": b"x", "3": packet(3)}
        out, said = read(tmp_path, tar(members), "a.tar")
        assert [one.value for one in out] == [packet(1), packet(3)]
        assert [line.split(":")[0].rsplit("/")[-1] for line in said] == ["2.avro", "notes.txt"]

    def test_a_broken_header_is_reported_and_passed_over(self, tmp_path):
        content = bytearray(tar({f"{n}.avro": packet(n) for n in range(3)}))
        place = content.index(b"1.avro")
        content[place : place + 200] = b"?" * 200
        out, said = read(tmp_path, bytes(content), "a.tar")
        assert [one.value for one in out] == [packet(0), packet(2)]
        assert len(said) == 1
        assert "no member" in said[0]

    def test_a_truncated_archive_gives_what_is_whole(self, tmp_path):
        content = tar({f"{n}.avro": packet(n) for n in range(50)}, "w:gz")
        out, said = read(tmp_path, content[: len(content) // 2], "a.tar.gz")
        assert all(one.value == packet(n) for n, one in enumerate(out))
        assert said

    def test_hidden_members_are_passed_over_and_counted(self, tmp_path):
        members = {"1.avro": packet(1), "._1.avro": b"\0\5\x16\7", "__MACOSX/1.avro": packet(1)}
        out, said = read(tmp_path, tar(members), "a.tar")
        assert [one.value for one in out] == [packet(1)]
        assert len(said) == 1
        assert "2 hidden members" in said[0]

    def test_archives_inside_each_other_are_bounded(self, tmp_path):
        content = packet(1)
        for _ in range(10):
            content = tar({"inner.tar": content})
        out, said = read(tmp_path, content, "a.tar")
        assert out == []
        assert "inside each other" in said[0]

    def test_memory_does_not_grow_with_the_archive(self, tmp_path):
        members = {f"{n}.json": packet(n) + bytes(100_000) for n in range(300)}  # 30 MB
        path = tmp_path / "a.tar"
        path.write_bytes(tar(members))
        members.clear()
        tracemalloc.start()
        for _ in PacketFile(path, lambda _: 60000.0).read(lambda _: None):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10 << 20


class TestParquet:
    def write(self, path, rows, schema=None):
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
        return path.read_bytes()

    def test_rows_become_containers_with_what_the_table_holds(self, tmp_path):
        path = tmp_path / "x.parquet"
        rows = [
            {
                "diaSource": {
                    "midpointMjdTai": 61000.5 - n,
                    "psfFlux": 1.1,
                    "diaSourceId": 2**62 + n,
                },
                "prv": [{"x": 1.0}, {"x": float("nan")}],
                "nothing": {"a": None, "b": None},
                "cutout": b"\0\1",
                "name": None,
            }
            for n in range(3)
        ]
        schema = pa.schema(
            [
                (
                    "diaSource",
                    pa.struct(
                        [
                            ("midpointMjdTai", pa.float64()),
                            ("psfFlux", pa.float32()),
                            ("diaSourceId", pa.int64()),
                        ]
                    ),
                ),
                ("prv", pa.list_(pa.struct([("x", pa.float64())]))),
                ("nothing", pa.struct([("a", pa.int32()), ("b", pa.string())])),
                ("cutout", pa.binary()),
                ("name", pa.string()),
            ]
        )
        out, said = read(tmp_path, self.write(path, rows, schema), "x.parquet")
        assert [one.time for one in out] == [61000.5, 60999.5, 60998.5]
        [back] = fastavro.reader(io.BytesIO(out[1].value))
        assert back["diaSource"]["diaSourceId"] == 2**62 + 1
        assert back["diaSource"]["psfFlux"] == pytest.approx(1.1, rel=1e-7)
        assert back["prv"][0] == {"x": 1.0}
        assert back["prv"][1]["x"] != back["prv"][1]["x"]
        assert back["nothing"] is None
        assert (back["cutout"], back["name"]) == (b"\0\1", None)
        assert not said
        assert PacketFile(path, event_time).begins(said.append) == 60998.5

    @pytest.mark.parametrize(
        ("values", "kind", "back"),
        [
            ([None], pa.null(), None),
            ([Decimal("1.5")], pa.decimal128(10, 2), 1.5),
            ([1500], pa.time32("ms"), 1500),
            ([1500], pa.time64("ns"), 1500),
            ([1500], pa.duration("ns"), 1500),
            ([[1.0, 2.0]], pa.list_(pa.float64(), 2), [1.0, 2.0]),
            ([[Decimal("1.5")]], pa.list_(pa.decimal128(5, 2)), [1.5]),
            ([{"a": Decimal("1.5"), "b": None}], pa.struct(
                [("a", pa.decimal128(5, 2)), ("b", pa.null())]), {"a": 1.5, "b": None}),
            ([b"ab"], pa.binary(2), b"ab"),
            ([1.5], pa.float16(), 1.5),
            ([7], pa.dictionary(pa.int32(), pa.int64()), 7),
            ([1], pa.timestamp("ns"), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ],
    )  # fmt: skip
    def test_types_that_nobody_reads_do_not_refuse_the_file(self, tmp_path, values, kind, back):
        table = pa.table({"candidate": [{"jd": JD}], "other": pa.array(values, kind)})
        pq.write_table(table, tmp_path / "x.parquet")
        out, said = read(tmp_path, (tmp_path / "x.parquet").read_bytes(), "x.parquet")
        [row] = fastavro.reader(io.BytesIO(out[0].value))
        assert row == {"candidate": {"jd": JD}, "other": back}
        assert not said

    def test_a_column_without_place_in_avro_is_left_out_and_named(self, tmp_path):
        columns = {
            "candidate": [{"jd": JD, "a-b": 1.0}],
            "i:ra": [1.5],
            "any": pa.array([1], pa.int64()),
        }
        out, said = read(tmp_path, self.write_table(tmp_path / "x.parquet", columns), "x.parquet")
        [row] = fastavro.reader(io.BytesIO(out[0].value))
        assert row == {"candidate": {"jd": JD}, "any": 1}
        assert len(said) == 1
        assert "x.parquet: left out" in said[0]
        assert "candidate_a-b (double), i:ra (double)" in said[0]

    def write_table(self, path, columns):
        pq.write_table(pa.table(columns), path)
        return path.read_bytes()

    def test_a_table_without_the_time_is_named_with_what_it_needs(self, tmp_path):
        content = self.write(tmp_path / "y.parquet", [{"flux": 1.0}])
        out, said = read(tmp_path, content, "y.parquet")
        assert out == []
        assert "y.parquet: no column diaSource.midpointMjdTai or" in said[0]
        assert "flux" in said[0]
        begins = PacketFile(tmp_path / "y.parquet", event_time).begins(said.append)
        assert begins is None

    def test_a_damaged_file_is_reported(self, tmp_path):
        rows = [{"candidate": {"jd": JD}}]
        content = self.write(tmp_path / "z.parquet", rows)
        out, said = read(tmp_path, content[:-30], "z.parquet")
        assert out == []
        assert "z.parquet" in said[0]

    def test_damage_anywhere_is_reported_and_ends_nothing(self, tmp_path):
        content = self.write(tmp_path / "z.parquet", [{"candidate": {"jd": JD}}])
        said = []
        for index in range(4, len(content) - 8):
            spoilt = bytearray(content)
            spoilt[index] ^= 0xFF
            _, new = read(tmp_path, bytes(spoilt), "z.parquet")
            PacketFile(tmp_path / "z.parquet", event_time).begins(said.append)
            said += new
        assert any("z.parquet" in line for line in said)


@pytest.mark.shared_data
class TestRealPackets:
    def test_every_self_describing_file_gives_its_packets(self, shared_data):
        alerts = shared_data / "alerts"
        expected = {
            "ztf/v4_02_ZTF17aaarzyp_2982177112815010003.avro": 1,
            "ztf/v1_3_121540793515135000.avro": 1,
            "lsst/v7_1_container_10alerts.avro": 10,
            "elasticc/v0_9_alert_mjd60674.0512_obj747_src1494043.avro.gz": 1,
            "fink/fink_client_avro_multi_alerts_11.avro": 11,
            "roman/rapid_v01_00_alert.json": 1,
            "lsst/v10_0_real_fink_part-1-0-192771779.parquet": 4,
        }
        found = {}
        for name in expected:
            said: list[str] = []
            stream = PacketFile(alerts / name, event_time)
            found[name] = len(list(stream.read(said.append)))
            assert not said
        assert found == expected

    def test_a_ztf_packet_keeps_its_bytes_and_tells_its_time(self, shared_data):
        path = shared_data / "alerts/ztf/v4_02_ZTF17aaarzyp_2982177112815010003.avro"
        [one] = PacketFile(path, event_time).read(lambda _: None)
        assert one.value == path.read_bytes()
        [content] = fastavro.reader(io.BytesIO(one.value))
        assert one.time == pytest.approx(content["candidate"]["jd"] - 2400000.5 + 37 / 86400)

    def test_the_damaged_block_is_passed_over(self, shared_data):
        said: list[str] = []
        path = shared_data / "alerts/ztf/v1_3_121540793515135009.avro"
        assert list(PacketFile(path, event_time).read(said.append)) == []
        assert len(said) == 1
