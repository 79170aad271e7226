-- The health that Argo CD shows for a Dataset.
-- Suspended: the annotation lethe.dev/paused is set.
local health = {status = "Progressing", message = "The operator has not looked at it yet."}
if obj.status == nil or obj.status.conditions == nil then
  return health
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
for _, condition in ipairs(obj.status.conditions) do
  if condition.type == "Stalled" and condition.status == "True" then
    health.status = "Degraded"
    health.message = condition.message
    return health
  end
  if condition.type == "Ready" then
    health.message = condition.message
    if condition.status == "True" then
      health.status = "Healthy"
    end
  end
  if condition.type == "Paused" and condition.status == "True" then
    health.status = "Suspended"
  end
end
return health
