"""Airflow's side of headway: operators, triggers and the hook. Thin; what is decided is decided in `headway`."""
