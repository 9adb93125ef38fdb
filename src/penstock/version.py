"""The version of this package.  The build reads it here, as every floor may."""

__version__ = "0.1.0"
