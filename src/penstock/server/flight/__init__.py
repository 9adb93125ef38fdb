"""The Flight door: pyarrow's server in its own threads, handing batches to the loop and taking answers from it."""
