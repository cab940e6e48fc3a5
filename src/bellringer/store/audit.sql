-- The audit log. Entries about jobs name a revision; its definition is read from job_revisions or jobs.

-- name: newest
-- The matching entries among the next $3 before $2, and the last entry that was read. job_id is computed in a CTE of
-- its own: under row-level security an index is used only with leakproof conditions, and a cast is not leakproof.
with seen as materialized (select * from audit where tenant_id = $1 and audit_id < $2 order by audit_id desc limit $3),
kept as materialized (
  select *, case kind when 'job' then target::uuid when 'run' then split_part(target, ' ', 1)::uuid end as job_id
  from seen
  where ($5::text is null or who = $5) and ($6::text is null or action = $6) and ($7::text is null or kind = $7)
    and ($8::text is null or target = $8) and ($9::timestamptz is null or at >= $9)
    and ($10::timestamptz is null or at < $10)
  order by audit_id desc limit $4)
select kept.audit_id, kept.at, kept.who, kept.origin, kept.request_id, kept.action, kept.kind, kept.target,
       kept.revision, job.name, coalesce(kept.before, previous.definition) as before,
       coalesce(kept.after, current.definition,
                case job.revision when kept.revision then definition_of(job) end) as after,
       page.stop, page.scanned
from (select min(audit_id) as stop, count(*) as scanned from seen) page
left join kept on true
left join jobs job on job.job_id = kept.job_id
left join job_revisions previous on previous.job_id = kept.job_id and previous.revision = kept.revision - 1
left join job_revisions current on current.job_id = kept.job_id and current.revision = kept.revision
order by kept.audit_id desc

-- name: after
-- As newest, for entries after $2, oldest first.
with seen as materialized (select * from audit where tenant_id = $1 and audit_id > $2 order by audit_id limit $3),
kept as materialized (
  select *, case kind when 'job' then target::uuid when 'run' then split_part(target, ' ', 1)::uuid end as job_id
  from seen
  where ($5::text is null or who = $5) and ($6::text is null or action = $6) and ($7::text is null or kind = $7)
    and ($8::text is null or target = $8) and ($9::timestamptz is null or at >= $9)
    and ($10::timestamptz is null or at < $10)
  order by audit_id limit $4)
select kept.audit_id, kept.at, kept.who, kept.origin, kept.request_id, kept.action, kept.kind, kept.target,
       kept.revision, job.name, coalesce(kept.before, previous.definition) as before,
       coalesce(kept.after, current.definition,
                case job.revision when kept.revision then definition_of(job) end) as after,
       page.stop, page.scanned
from (select max(audit_id) as stop, count(*) as scanned from seen) page
left join kept on true
left join jobs job on job.job_id = kept.job_id
left join job_revisions previous on previous.job_id = kept.job_id and previous.revision = kept.revision - 1
left join job_revisions current on current.job_id = kept.job_id and current.revision = kept.revision
order by kept.audit_id

-- name: lock
select pg_try_advisory_xact_lock(LOCK_AUDIT_SEAL, 0)

-- name: unsealed
-- The next entries in sealing order, with the definitions of jobs. Only entries of ended transactions, those below the
-- snapshot's xmin: new transactions get greater numbers, so no entry can appear later before a seal. audit_id alone
-- would not be safe, because ids are assigned before the commit.
select entry.audit_id, entry.tx::text::bigint as tx, entry.at, entry.tenant_id, entry.who, entry.origin,
       entry.request_id, entry.action, entry.kind, entry.target, entry.revision,
       coalesce(entry.before::text, definition_digest(seal_document(previous.definition)),
                previous_digest.digest) as before,
       coalesce(entry.after::text,
                definition_digest(coalesce(seal_document(current.definition),
                                           case job.revision when entry.revision then seal_document(job) end)),
                current_digest.digest) as after
from (
  select *, case kind when 'job' then target::uuid end as job_id from audit
  where (tx, audit_id) > ($1::bigint::text::xid8, $2) and tx < commit_horizon()
  order by tx, audit_id limit $3) entry
left join job_revisions previous on previous.job_id = entry.job_id and previous.revision = entry.revision - 1
left join job_revisions current on current.job_id = entry.job_id and current.revision = entry.revision
left join jobs job on job.job_id = entry.job_id
left join job_digests previous_digest on job.job_id is null and previous_digest.job_id = entry.job_id
  and previous_digest.revision = entry.revision - 1
left join job_digests current_digest on job.job_id is null and current_digest.job_id = entry.job_id
  and current_digest.revision = entry.revision
order by entry.tx, entry.audit_id

-- name: sealed
-- As unsealed, for the entries up to a seal.
select entry.audit_id, entry.tx::text::bigint as tx, entry.at, entry.tenant_id, entry.who, entry.origin,
       entry.request_id, entry.action, entry.kind, entry.target, entry.revision,
       coalesce(entry.before::text, definition_digest(seal_document(previous.definition)),
                previous_digest.digest) as before,
       coalesce(entry.after::text,
                definition_digest(coalesce(seal_document(current.definition),
                                           case job.revision when entry.revision then seal_document(job) end)),
                current_digest.digest) as after
from (
  select *, case kind when 'job' then target::uuid end as job_id from audit
  where (tx, audit_id) > ($1::bigint::text::xid8, $2) and (tx, audit_id) <= ($3::bigint::text::xid8, $4)
  order by tx, audit_id limit $5) entry
left join job_revisions previous on previous.job_id = entry.job_id and previous.revision = entry.revision - 1
left join job_revisions current on current.job_id = entry.job_id and current.revision = entry.revision
left join jobs job on job.job_id = entry.job_id
left join job_digests previous_digest on job.job_id is null and previous_digest.job_id = entry.job_id
  and previous_digest.revision = entry.revision - 1
left join job_digests current_digest on job.job_id is null and current_digest.job_id = entry.job_id
  and current_digest.revision = entry.revision
order by entry.tx, entry.audit_id

-- name: last
select seal_id, last_tx::text::bigint as last_tx, last_id, count, prev_hash, hash, sealed_at from audit_seals
order by seal_id desc limit 1

-- name: seals
select seal_id, last_tx::text::bigint as last_tx, last_id, count, prev_hash, hash, sealed_at from audit_seals
where seal_id > $1
order by seal_id limit $2

-- name: newest_seals
select seal_id, last_tx::text::bigint as last_tx, last_id, count, prev_hash, hash, sealed_at from audit_seals
where seal_id < $1
order by seal_id desc limit $2

-- name: add
insert into audit_seals (last_tx, last_id, count, prev_hash, hash, sealed_at)
values ($1::bigint::text::xid8, $2, $3, $4, $5, bellringer.now())

-- name: unsealed_count
select count(*) from (select 1 from audit where (tx, audit_id) > ($1::bigint::text::xid8, $2) limit 100000) u

-- name: forget
select bellringer.forget_audit($1, 100)
