"""A backend over any engine that can move messages between ranks."""
