"""What every page is built of: HTML that needs nothing beside it, and pictures in the page's own colours."""
