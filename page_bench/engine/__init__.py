"""One prompt's way from prefill to answer."""
