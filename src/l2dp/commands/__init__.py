"""Groups of commands, one file each, thin: parse, call, print. `l2dp.cli` puts them together."""
