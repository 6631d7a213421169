-- Prepended to the scripts that look prompts up place by place: what prompts of a round share is looked up once.

local LOOK_UPS = 5000 -- of one call, and those of the place that is begun: 5 to 10 ms, in which Redis does nothing else

-- Of the prompts from ARGV[begin] on: the first of those that begin alike; the others; and of each of these the first
-- one, and how many leading blocks it shares with that one.
local function kinship(begin)
  local found, first, others, kin, shared = {}, {}, {}, {}, {}
  for p = begin, #ARGV do
    local h = ARGV[p]
    local one = found[string.sub(h, 1, 8)]
    if one then
      local low, high = 1, math.min(#h, #ARGV[one]) / 8
      while low < high do
        local middle = math.floor((low + high + 1) / 2)
        local hash = string.sub(h, middle * 8 - 7, middle * 8)
        if hash == string.sub(ARGV[one], middle * 8 - 7, middle * 8) then low = middle else high = middle - 1 end
      end
      others[#others + 1], kin[p], shared[p] = p, one, low
    elseif h ~= '' then
      found[string.sub(h, 1, 8)], first[#first + 1] = p, p
    end
  end
  return first, others, kin, shared
end
