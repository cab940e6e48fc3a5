-- Parses the filter of a list. The list functions bypass row-level security, so this raises if the connection serves
-- another tenant than p_tenant.
create or replace function filter_of(p_tenant integer, p_filter jsonb) returns run_filter
language plpgsql stable set search_path = bellringer, pg_temp as $$
begin
  if p_tenant <> coalesce(nullif(current_setting('bellringer.tenant', true), '')::integer, p_tenant) then
    raise insufficient_privilege using message = 'that is another tenant''s';
  end if;
  return jsonb_populate_record(null::run_filter, p_filter);
end $$;

-- The id of a task; -1, which matches no row, if there is no task of that name; null for null.
create or replace function task_id_of(p_name text) returns integer language sql stable
  set search_path = bellringer, pg_temp as
$$ select coalesce((select task_id from tasks where name = p_name), case when p_name is not null then -1 end) $$;

-- The id of a pool; -1, which matches no row, if there is no pool of that name; null for null.
create or replace function pool_id_of(p_name text) returns smallint language sql stable
  set search_path = bellringer, pg_temp as $$
  select coalesce((select pool_id from pools where name = p_name), case when p_name is not null then -1::smallint end)
$$;

-- The state of a run that has a queue row.
create or replace function queue_state(queued queue) returns text language sql immutable parallel safe as $$
  select case when queued.worker_id is not null or queued.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW then 'running'
              when queued.blocked & NOT_CLAIMABLE <> 0 then 'blocked'
              when queued.attempt > 0 then 'retrying' else 'queued' end
$$;

-- A timer without an attempt has no run yet.
create or replace function timer_state(timer timers) returns text language sql immutable parallel safe as
$$ select case when timer.attempt > 0 then 'retrying' else 'waiting' end $$;

-- The state of one run. Lists compute it for many runs in one plan, because a function with lookups is planned at each
-- call.
create or replace function state_of(p_job uuid, p_at timestamptz, p_slot bigint) returns text language sql stable as $$
  select coalesce((select bellringer.queue_state(run) from bellringer.queue run
                   where run.job_id = p_job and run.scheduled_for = p_at and run.slot = p_slot),
                  (select bellringer.timer_state(timer) from bellringer.timers timer
                   where timer.job_id = p_job and timer.scheduled_for = p_at and timer.slot = p_slot),
                  (select attempt.ends_as::text from bellringer.attempts attempt
                   where attempt.job_id = p_job and attempt.scheduled_for = p_at and attempt.slot = p_slot
                     and attempt.ends_as is not null
                   order by attempt.finished_at desc, attempt.attempt desc limit 1),
                  'queued')
$$;
