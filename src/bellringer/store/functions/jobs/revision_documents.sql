-- The columns of a job that belong to its definition, without nulls.
create or replace function terms_of(job jobs) returns jsonb language sql stable as $$
  select jsonb_strip_nulls(to_jsonb(row(job.tenant_id, job.shard, job.name, job.task_id, job.schedule_ids, job.once_at,
                                        job.delay, job.pool_id, job.priority, job.misfire, job.overlap, job.key_id,
                                        job.cap, job.jitter, job.jitter_by, job.late_after, job.starts_at, job.ends_at,
                                        job.enabled, job.paused_at, job.paused_by, job.paused_reason, job.paused_until,
                                        job.owner, job.tags, job.deleted_at, job.expected_duration, job.routed,
                                        job.learned_at, job.after_completion, job.expires_in,
                                        job.pause_after_failures, job.after)::bellringer.job_terms))
$$;

-- The whole definition of a job, as revisions and the audit store it.
create or replace function definition_of(job jobs) returns jsonb language sql stable as $$
  -- nulls inside these three documents are kept
  select bellringer.terms_of(job)
           || jsonb_build_object('spec', job.spec, 'schedules', job.schedules, 'catchup', job.catchup)
$$;

-- All revisions of a job, the current one included. The condition on job_id is outside the union, so that `order by
-- revision desc limit n` reads only the newest rows by the primary key.
create or replace function revisions_of(p_job uuid)
returns table (revision integer, effective_at timestamptz, what text, who text, why text,
               definition jsonb) language sql stable as $$
  select revision.revision, revision.effective_at, revision.what, revision.who, revision.why, revision.definition
  from (
    select job_id, revision, effective_at, what, who, why, definition from bellringer.job_revisions
    union all
    select job_id, revision, updated_at, what, who, why, bellringer.definition_of(job)
    from bellringer.jobs job) revision
  where revision.job_id = p_job
$$;
