-- The health that Argo CD shows for a Restatement.
-- Suspended: spec.suspend is true. A cancelled Restatement is Healthy: its last request was met.
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
    elseif condition.reason == "Suspended" then
      health.status = "Suspended"
    end
  end
end
return health
