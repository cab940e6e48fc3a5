'use strict'

const { makeWorkerUtils, parseCronItems, run, runMigrations, Logger } = require('graphile-worker')
const { record } = require('./recorder')
const { settings, chunks, dueDate, exitOnSignal, main } = require('./driver')

// The settings of the project's own performance test: batches in both directions, prepared statements.
const preset = {
  worker: {
    connectionString: settings.dsn,
    concurrentJobs: 24,
    maxPoolSize: 26,
    pollInterval: 50, // ms; the default of two seconds would be the lateness of most timed jobs
    preparedStatements: true,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger: new Logger(() => (level, message) => { if (level === 'error') console.error(message) })
  }
}
const spec = (job) => ({ identifier: 'noop', payload: job, runAt: job.due_us ? dueDate(job) : undefined })

async function open () {
  const utils = await makeWorkerUtils({ preset })
  return {
    single: (job) => utils.addJob('noop', job, job.due_us ? { runAt: dueDate(job) } : {}),
    async bulk (jobs) {
      for (const part of chunks(jobs, settings.chunk)) await utils.addJobs(part.map(spec))
    },
    async register () {}, // the crontab is part of the worker's configuration
    close: () => utils.release()
  }
}

async function work () {
  const items = Array.from({ length: settings.cron_jobs }, (_, number) => ({
    task: 'noop', match: '* * * * *', identifier: `job-${number}`, payload: { batch: settings.cron_batch, number, due_us: 0 }
  }))
  const noop = async (job) => record(job.batch, job.number, job.due_us)
  const runner = await run({ preset, taskList: { noop }, parsedCronItems: parseCronItems(items), noHandleSignals: true })
  exitOnSignal(() => runner.stop())
  await runner.promise
}

main({ prepare: () => runMigrations({ preset }), open, work })
