"""Commands for those who work on Motet itself; nothing in `src` imports them."""
