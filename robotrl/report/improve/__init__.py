"""Page of an improvement: holdings of the logs, the critic, and the gate."""
