"""Numbers that record their computation, for the interpreter: ``tape``, and ``user_text``, which
finds places in the user's text.
"""
