"""Numbers that remember how they were made, for the interpreter: ``tape``, and ``user_text``, which
says where in the user's text something happens.
"""
