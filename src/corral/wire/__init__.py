"""Structures to bytes and back: a safe format for objects, and layouts for arrays that travel by themselves."""
