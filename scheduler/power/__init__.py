"""Power caps of the console: rated watts, forms, and what pages show."""
