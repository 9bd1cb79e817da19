"""From the packets and files of surveys to `broker_filter.types.Photometry`."""
