"""Archives of any kind as streams of messages in order of event time."""
