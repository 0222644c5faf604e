"""One home for each verb: its plan (every guard, no Spark), its execution, and its words."""
