"""Pages: read the request, check who asks, call one function, render."""
