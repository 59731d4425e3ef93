"""Devices: public figures, assumptions, and which one this machine has."""
