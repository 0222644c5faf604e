"""Airflow's edge: the DAG files by themselves, and real streams under a real Airflow."""
