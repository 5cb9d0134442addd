"""Facts about the product, room by room."""
