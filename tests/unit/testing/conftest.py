"""The plugin's fixtures, also where the package is not installed and pytest cannot find its entry point."""

from __future__ import annotations

from penstock.testing.plugin import penstock_broker, penstock_config, penstock_server

__all__ = ["penstock_broker", "penstock_config", "penstock_server"]
