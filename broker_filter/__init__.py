"""A streaming microlensing filter for alert brokers: Kafka in, Bayes factors and posteriors out."""

from broker_filter.alerts.alert import Alert
from broker_filter.client.subscribe import Subscription, subscribe

__all__ = ["Alert", "Subscription", "subscribe"]
