"""Speech that becomes text: what a request means, and what its answer looks like."""
