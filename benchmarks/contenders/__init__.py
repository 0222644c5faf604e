"""Programs that `files_to_windows` measures, each run in a process of its own, by the path of its file.

A program takes a folder, whose `landing/sales` has the files, and writes into it. It imports nothing of `benchmarks`:
that by Tidemark runs with another checkout's code too, that by PyFlink without Tidemark.
"""
