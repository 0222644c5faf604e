"""Small faults, each a patch beside this file that says what its user would meet and which tests find it.

`make mutants` makes them one after the other, and tells of each whether those tests fail: so it is known that they can.
"""
