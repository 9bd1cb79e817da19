"""A streaming microlensing filter for alert brokers: Kafka in, Bayes factors and posteriors out."""

from broker_filter.alert import Alert
from broker_filter.subscribe import Subscription, subscribe

__all__ = ["Alert", "Subscription", "subscribe"]
