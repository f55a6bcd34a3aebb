"""Commands besides training. They read run folders and servers; the core imports none of them."""
