"""The commands of the core, by what they are about; `core.broker` joins them."""
