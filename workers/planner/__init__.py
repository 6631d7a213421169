"""The planner's process: observes, lets `app.planner` decide, and has its decisions carried out."""
