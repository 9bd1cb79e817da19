"""Archives as streams, merged by time and published."""
