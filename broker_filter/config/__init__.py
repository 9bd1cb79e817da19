"""Settings: one frozen tree, from a YAML file and then from the environment.

The file holds sections and keys (``deploy/config.example.yaml`` shows all of them). The variable
``BROKER_FILTER_<SECTION>__<KEY>`` overrides a key, ``BROKER_FILTER_<SECTION>__<PART>__<KEY>`` a
nested one; empty variables count as unset and lists are separated by commas. Nothing else reads
the environment.

A secret, such as the password, comes from ``BROKER_FILTER_KAFKA__SECURITY__PASSWORD`` or from the
file that ``kafka.security.password_file`` names, never from the YAML file, and is shown nowhere.
"""

from __future__ import annotations

from broker_filter.config.alert import AlertSettings, NoiseSettings, RateSettings, SurveyNoise
from broker_filter.config.input import Input, Packets
from broker_filter.config.kafka import Kafka, Security
from broker_filter.config.model import Batch, Model
from broker_filter.config.service import DeadLetters, Log, MetricsSettings, Snapshot
from broker_filter.config.settings import Settings, load_settings, masked, unread_variables
from broker_filter.config.window import ScheduleSettings, Window

__all__ = [
    "AlertSettings",
    "Batch",
    "DeadLetters",
    "Input",
    "Kafka",
    "Log",
    "MetricsSettings",
    "Model",
    "NoiseSettings",
    "Packets",
    "RateSettings",
    "ScheduleSettings",
    "Security",
    "Settings",
    "Snapshot",
    "SurveyNoise",
    "Window",
    "load_settings",
    "masked",
    "unread_variables",
]
