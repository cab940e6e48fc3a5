'use strict'

const { PgBoss } = require('pg-boss')
const { record } = require('./recorder')
const { settings, chunks, dueDate, exitOnSignal, main } = require('./driver')

const QUEUE = 'noop'
const BATCH = 1000

async function connect (options) {
  const boss = new PgBoss({
    connectionString: settings.dsn,
    useListenNotify: true,
    cronMonitorIntervalSeconds: 1,
    cronWorkerIntervalSeconds: 1,
    ...options
  })
  boss.on('error', (error) => console.error(error))
  await boss.start()
  return boss
}

async function prepare () {
  const boss = await connect({ supervise: false, schedule: false })
  await boss.createQueue(QUEUE, { notify: true, partition: true })
  await boss.stop({ graceful: false })
}

async function open () {
  const boss = await connect({ supervise: false, schedule: false, useListenNotify: false })
  return {
    single: (job) => boss.send(QUEUE, job, job.due_us ? { startAfter: dueDate(job) } : {}),
    async bulk (jobs) {
      for (const part of chunks(jobs, settings.chunk)) {
        await boss.insert(QUEUE, part.map((job) => ({ data: job, startAfter: job.due_us ? dueDate(job) : undefined })))
      }
    },
    async register (jobs) {
      for (const part of chunks(jobs, 8)) { // the pool has ten connections
        await Promise.all(part.map((job) => boss.schedule(QUEUE, '* * * * *', { ...job, due_us: 0 }, { key: `job-${job.number}` })))
      }
    },
    close: () => boss.stop({ graceful: false })
  }
}

async function work () {
  const boss = await connect({ schedule: settings.cron_jobs > 0 })
  const polling = { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5, burstWhenBatchFull: true }
  await boss.work(QUEUE, { batchSize: BATCH, ...polling }, async (jobs) => {
    for (const { data } of jobs) record(data.batch, data.number, data.due_us)
  })
  exitOnSignal(() => boss.stop({ graceful: false }))
}

main({ prepare, open, work })
