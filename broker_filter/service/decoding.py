"""How messages are decoded, as the settings say."""

from __future__ import annotations

import math
from collections.abc import Callable

from broker_filter.config import Input
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

__all__ = ["make_decoder"]


def make_decoder(settings: Input, waiting: Callable[[], object] = lambda: None) -> Decoder:
    """Decoder of the input topics, with all schemas that the settings name.

    ``waiting`` is called again and again while a schema registry is waited for.

    Raises
    ------
    ConfigError, SchemaError
        A folder of schemas is missing or not valid, or the registry's login cannot be read.
    """
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
