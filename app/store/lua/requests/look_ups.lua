-- Prepended to the scripts that look prompts up place by place.
local LOOK_UPS = 5000 -- of one call, and those of the place that is begun: 5 to 10 ms, in which Redis does nothing else
