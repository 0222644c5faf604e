"""What the DAG files share. Nothing here reads the environment, the network or a lake when it is imported."""
