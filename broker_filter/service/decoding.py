"""How messages are decoded, as the settings say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches

from broker_filter.config import Input, Settings
from broker_filter.decode.avro.schema import load_folder
from broker_filter.decode.decoder import Decoder
from broker_filter.decode.framing import Unframer
from broker_filter.decode.registry import (
    Registry,
    SchemaLookup,
    chained,
    filed_schemas,
    package_folder,
)
from broker_filter.decode.surveys.registry import check_cuts, surveys

__all__ = ["make_decoder", "unknown_surveys"]


def make_decoder(settings: Input, waiting: Callable[[], object] = lambda: None) -> Decoder:
    """Decoder of the input topics, with all schemas that the settings name.

    ``waiting`` is called again and again while a schema registry is waited for.

    Raises
    ------
    ConfigError, SchemaError
        A folder of schemas is missing or not valid, the registry's login cannot be read, or no
        survey has a cut that is to be ignored.
    """
    check_cuts(settings.packets, "input.packets")
    sources: list[SchemaLookup] = [filed_schemas(settings.schema_folder, settings.schema_ids).get]
    if packaged := package_folder():
        sources.append(filed_schemas(packaged).get)
    if settings.schema_registry:
        login = settings.schema_registry_login_file
        sources.append(Registry(settings.schema_registry, login_file=login, waiting=waiting))
    schemaless = {topic: load_folder(path) for topic, path in settings.topic_schemas.items()}
    unframer = Unframer(
        chained(*sources), schemaless=schemaless, max_bytes=settings.max_message_bytes
    )
    return Decoder(
        settings.format,
        max_bytes=settings.max_message_bytes,
        unframer=unframer,
        options=settings.packets,
        look_back_days=math.inf if settings.look_back_days is None else settings.look_back_days,
    )


def unknown_surveys(settings: Settings) -> Iterator[str]:
    """A line for each survey in the settings whose packets are not among those that are read.

    It may be right all the same: photometry messages name any survey.
    """
    known = sorted({survey.name for survey in surveys()})
    noise = settings.alert.noise
    keys: dict[str, Iterable[str]] = {
        "model.surveys": settings.model.surveys,
        "alert.noise.surveys": {} if noise == "white" else noise.surveys,
    }
    for key, named in keys.items():
        for name in named:
            if name.lower() in known:
                continue
            near = get_close_matches(name.lower(), known, 1)
            meant = f" (is {near[0]} meant?)" if near else ""
            yield (
                f"{key}: {name!r} is none of the surveys whose packets are read"
                f" ({', '.join(known)}){meant}: it holds for photometry messages of this very name"
            )
