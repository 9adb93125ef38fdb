"""Declared pipelines: one definition is one streaming query, and one process runs them all."""
