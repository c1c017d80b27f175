"""The demo's past, played in memory and written in bulk. Nothing here has a say once the console runs."""
