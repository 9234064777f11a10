"""Lightning callbacks of the facade."""

from portico.callbacks.bridge import EventBridge

__all__ = ["EventBridge"]
