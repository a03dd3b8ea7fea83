-- Every job that asks for GPUs comes in held, until the Allmende agent releases it. Put this file beside slurm.conf and set
-- JobSubmitPlugins=lua there. It asks nobody, so sbatch works as quickly and as surely as before; where Allmende is down, such
-- jobs wait. A hold that a plugin sets counts as the user's own, who could release it, and may requeue his running job without one:
-- so what decides when, where and with how much a job runs is not changed by its user (decision record 0046).

local MARK = "allmende:"
-- Who may: root, and the number of the account that the agent runs as, where that is another.
local TRUSTED = { [0] = true }
-- Not `account`, `comment` and the like: those of a held job are its user's to change.
local NOT_BY_USERS = { "priority", "requeue", "req_nodes", "min_nodes", "max_nodes" }
local AMOUNTS = { "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }

-- 2002 is "access denied". Slurm 22.05 passes no sentence on to whoever changes a job; this one stands in slurmctld's log.
local DENIED = slurm.ESLURM_ACCESS_DENIED or 2002

local function asks_for_gpus(job)
    for _, field in ipairs(AMOUNTS) do
        local asked = job[field]
        if asked ~= nil and string.find(asked, "gpu", 1, true) then
            return true
        end
    end
    return false
end

local function refuse(what)
    slurm.log_info("allmende: the %s of a job with GPUs is not its user's to change", what)
    return DENIED
end

-- `--exclusive` is given all GPUs of its nodes, asked for or not.
local function takes_gpus(job)
    return asks_for_gpus(job) or job.shared == 0
end

function slurm_job_submit(job, partitions, uid)
    if takes_gpus(job) then
        job.priority = 0
        job.requeue = 0
        -- A mark that users cannot write; the agent puts the job's id in its place.
        job.admin_comment = MARK .. "held"
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    if TRUSTED[uid] then
        return slurm.SUCCESS
    end
    -- A job without GPUs would otherwise come in free and ask for them afterwards.
    if takes_gpus(job) then
        return refuse("number of GPUs")
    end
    -- What an exclusive job asked for is not shown here, so it is known by its mark.
    local marked = string.sub(record.admin_comment or "", 1, #MARK) == MARK
    if not marked and not asks_for_gpus(record) then
        return slurm.SUCCESS
    end
    for _, field in ipairs(NOT_BY_USERS) do
        local asked = job[field]
        if asked ~= nil and asked ~= slurm.NO_VAL and asked ~= slurm.NO_VAL16 and asked ~= "" then
            return refuse(field)
        end
    end
    return slurm.SUCCESS
end

return slurm.SUCCESS
