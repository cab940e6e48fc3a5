'use strict'

const { Queue, Worker } = require('bullmq')
const Redis = require('ioredis')
const { record } = require('./recorder')
const { settings, chunks, exitOnSignal, main } = require('./driver')

const QUEUE = 'noop'
const KEEP_NOTHING = { removeOnComplete: true }
const connect = () => new Redis(settings.redis, { maxRetriesPerRequest: null })
const options = (job) => job.due_us ? { delay: Math.max(job.due_us / 1000 - Date.now(), 0) } : {}

async function open () {
  const queue = new Queue(QUEUE, { connection: connect(), defaultJobOptions: KEEP_NOTHING })
  return {
    single: (job) => queue.add('noop', job, options(job)),
    async bulk (jobs) {
      for (const part of chunks(jobs, settings.chunk)) {
        await queue.addBulk(part.map((job) => ({ name: 'noop', data: job, opts: options(job) })))
      }
    },
    async register (jobs) {
      for (const part of chunks(jobs, 100)) {
        await Promise.all(part.map((job) => queue.upsertJobScheduler(
          `job-${job.number}`, { pattern: '* * * * *', utc: true }, { name: 'noop', data: job, opts: KEEP_NOTHING })))
      }
    },
    async close () {
      await queue.close()
      process.exit(0)
    }
  }
}

async function work () {
  const worker = new Worker(QUEUE, async ({ data }) => record(data.batch, data.number, data.due_us), {
    connection: connect(), concurrency: 100
  })
  worker.on('error', (error) => console.error(error))
  exitOnSignal(() => worker.close(true))
}

main({ prepare: async () => {}, open, work })
