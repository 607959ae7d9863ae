"""Programs that run as jobs: one JSON job in, one JSON result out. No Airflow, no cluster client, no settings."""
