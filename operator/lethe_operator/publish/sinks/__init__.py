"""Where events are delivered to."""
