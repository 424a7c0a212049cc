//! What is true, kept apart from what the guard believes, and the laws that must hold.

use std::collections::{BTreeMap, BTreeSet};

use super::law::{Broken, Law, broken};
use super::sink::Disk;
use super::stream::Message;
use super::{Recover, World};
use crate::checkpoint::Checkpoint;
use crate::coverage::{Coverage, Span};
use crate::record::RecordId;
use crate::store::sim::{SimDisk, SimStore};
use crate::{Counters, Guard, Permits, Record, Source, Trust};

#[derive(Debug)]
pub(crate) struct Books {
    world: World,
    sink: Disk,
    disk: SimDisk,
    source: Source,
    /// Handed to the sink at hand, and not yet permitted.
    open: BTreeSet<RecordId>,
    /// How often a record may be durable beyond once.
    allowed: BTreeMap<RecordId, usize>,
    /// What was there before archiving began, and is not ours.
    pub(crate) theirs: BTreeSet<RecordId>,
    /// Messages that are taken for archived and are not, within the known limits.
    excused: BTreeSet<RecordId>,
    /// The newest record of each flush.
    boundaries: BTreeSet<RecordId>,
    /// How many cuts of the stream were looked at.
    cuts: usize,
    begun: usize,
    /// A fork was reported, and no consumer was moved or made since.
    owes_move: bool,
    floor: u64,
    /// Whether the stream held its first message when the floor was looked at.
    whole: bool,
    forgotten: u64,
    ever_forgot: bool,
    /// Where archiving began.
    adopted: Option<u64>,
    /// How many messages the stream had dropped when it did, as far as its checkpoint or its absence tells: nobody's loss.
    began: usize,
    /// How many dropped sequences earlier processes told of.
    told: u64,
    /// What was dropped from a gap below the newest record that a process then left archived: nobody tells.
    untold: BTreeSet<RecordId>,
    /// When the flush at hand began.
    flush: u64,
    /// When all was last compared with the stream.
    verified: u64,
}

impl Books {
    pub(crate) fn new(world: &World, sink: &Disk, disk: &SimDisk, source: &Source) -> Self {
        Self {
            world: world.clone(),
            sink: sink.clone(),
            disk: disk.clone(),
            source: source.clone(),
            open: BTreeSet::new(),
            allowed: BTreeMap::new(),
            theirs: BTreeSet::new(),
            excused: BTreeSet::new(),
            boundaries: BTreeSet::new(),
            cuts: 0,
            begun: 0,
            owes_move: false,
            floor: 0,
            whole: false,
            forgotten: 0,
            ever_forgot: false,
            adopted: None,
            began: 0,
            told: 0,
            untold: BTreeSet::new(),
            flush: 0,
            verified: 0,
        }
    }

    fn held(&self, id: RecordId, message: &Message) -> bool {
        self.theirs.contains(&id) || self.sink.has(id, message.payload.as_bytes())
    }

    fn allow(&mut self, id: RecordId) {
        *self.allowed.entry(id).or_default() += 1;
    }

    /// A record goes to the sink.
    pub(crate) fn written(&mut self, id: RecordId) {
        self.open.insert(id);
        // A claim that speaks for records of two lives falls as a whole.
        if self.in_the_dark() && self.sink.inside().recover != Recover::Unknown {
            self.allow(id);
        }
    }

    /// The process ended. A plain sink may hold what its last flush made durable without a checkpoint: it may come once
    /// more. A sink that keeps claims gives them back.
    ///
    /// What its guard had forgotten at the limit counts, also in a flush that did not come to its end.
    pub(crate) fn died<S>(&mut self, guard: &Guard<S>) {
        let counted = guard.counters();
        self.observe();
        self.untold(guard.coverage());
        self.ever_forgot |= counted.spans_forgotten > self.forgotten;
        self.told += counted.passed_by;
        let open = std::mem::take(&mut self.open);
        let replaced = |id: &RecordId| {
            self.world.get(id.sequence).is_some_and(|message| message.published != id.published)
                || self.world.state().last < id.sequence
        };
        // A claim speaks for a flush by its newest records; one that was replaced takes what stands beside it along.
        if self.sink.inside().recover == Recover::Unknown || open.iter().any(replaced) {
            let plain = self.sink.inside().recover == Recover::Unknown;
            for id in open {
                if plain || !self.settled(id) {
                    self.allow(id);
                }
            }
        }
        self.floor = 0;
        self.forgotten = 0;
    }

    fn untold(&mut self, coverage: &Coverage) {
        let newest = coverage.last().map_or(0, |span| span.last);
        let state = self.world.state();
        let dropped = state.server.dropped.iter().filter(|(at, _)| *at < newest);
        self.untold.extend(dropped.map(|(at, message)| message.id(*at)));
    }

    /// In the end: what the stream dropped before it was archived was told, in a stream that was never cut.
    pub(crate) fn dropped(&self, counted: Counters, origin: u64) -> Result<(), Broken> {
        let state = self.world.state();
        let told = self.told + counted.passed_by;
        let server = &state.server;
        if self.cuts > 0 || state.work_queue || server.brought_back || server.stepped_back {
            return Ok(());
        }
        if told > 0 && !server.removals {
            return broken(Law::Dropped, format!("{told} sequences were dropped, they say"));
        }
        let missed = server.dropped.iter().skip(self.began).filter(|(at, message)| {
            let id = message.id(*at);
            *at >= origin
                && !self.untold.contains(&id)
                && message.subject.starts_with(self.prefix())
                && !self.held(id, message)
        });
        let missed = missed.count() as u64;
        if self.prefix().is_empty() && told < missed {
            return broken(Law::Dropped, format!("{missed} were dropped and not archived, told are {told}"));
        }
        Ok(())
    }

    /// The checkpoint is lost: a plain sink gets everything again.
    pub(crate) fn lost_checkpoint(&mut self) {
        if self.sink.inside().recover == Recover::Unknown {
            self.allow_all_above(None);
        }
        self.boundaries.clear();
    }

    /// Whether a fork does not make this record come again: it stands, the sink says record by record what it holds, and
    /// nothing makes that uncertain.
    fn settled(&self, id: RecordId) -> bool {
        let inside = self.sink.inside();
        let state = self.world.state();
        let server = &state.server;
        // What an earlier fork left behind there makes it uncertain which life the coverage means.
        inside.tells.is_some()
            && !(state.work_queue || server.removals || server.stepped_back || server.brought_back)
            && inside
                .through(id.sequence)
                .all(|id| state.messages.get(&id.sequence).is_some_and(|message| message.published == id.published))
    }

    /// Everything durable above this record may come once more.
    fn allow_all_above(&mut self, below: Option<RecordId>) {
        self.allow_above(below, |_, _| true);
    }

    /// The same of those for which this holds.
    fn allow_above(&mut self, below: Option<RecordId>, wanted: impl Fn(&Self, RecordId) -> bool) {
        let ids: BTreeSet<RecordId> = self.sink.inside().durable.iter().map(Record::id).collect();
        for id in ids {
            // What a narrowed span no longer knows by its times may come again as well.
            let above = below.is_none_or(|below| id.sequence > below.sequence || id.published > below.published);
            if above && wanted(self, id) {
                self.allow(id);
            }
        }
    }

    /// Looks what the world did to the stream since.
    ///
    /// A cut makes records come again that still stand: those above the newest flush boundary that stands below the cut.
    pub(crate) fn observe(&mut self) {
        let cuts: Vec<u64> = self.world.state().server.cuts[self.cuts..].to_vec();
        self.cuts += cuts.len();
        // Cut again while it was being asked about, the end of what stands may not be found.
        let again = cuts.len() > 1;
        for through in cuts {
            let standing = |id: &&RecordId| {
                id.sequence <= through
                    && self.world.get(id.sequence).is_some_and(|message| message.published == id.published)
            };
            let below = self.boundaries.iter().rev().find(standing).copied();
            // A cut narrows the times of a span to those of its witness; where the clock stepped back, that may leave out
            // anything, which then contradicts the span once more.
            let below = below.filter(|_| !self.world.state().server.stepped_back);
            self.boundaries.retain(|id| id.sequence <= through);
            // What was lost may have come back since, from a backup.
            self.allow_above(below, |books, id| again || id.sequence > through || !books.settled(id));
            // One claim speaks for what one flush holds, and the cut may lie inside.
            let claims = self.sink.inside().recover != Recover::Unknown;
            let files = self.sink.inside().files.iter().map(|(_, ids)| ids.clone()).collect::<Vec<_>>();
            let split = files.into_iter().filter(|ids| ids.iter().any(|id| id.sequence > through)).flatten();
            for id in self.open.clone().into_iter().chain(split).filter(|_| claims) {
                if again || id.sequence > through || !self.settled(id) {
                    self.allow(id);
                }
            }
            self.floor = 0;
        }
    }

    /// A flush, a session start or a look begins.
    pub(crate) fn asks(&mut self) -> Result<(), Broken> {
        // As long as nothing is known of what is asked now.
        self.begun()?;
        self.flush = self.world.state().stamp();
        Ok(())
    }

    /// What a call of the guard said; `all`: a session began, and everything was asked about.
    pub(crate) fn said<S>(&mut self, guard: &Guard<S>, permits: &Permits, all: bool) -> Result<(), Broken> {
        self.observe();
        if let Some(fork) = permits.fork() {
            // What others acked, or we before the checkpoint was lost, may come back where acks are not synced.
            if self.cuts == 0 && !self.world.state().server.brought_back {
                return broken(Law::ForkWithoutCause, format!("{fork:?}"));
            }
            if !permits.acks().is_empty() {
                return broken(Law::Lost, "acks are permitted beside a fork");
            }
            self.owes_move = true;
            // A span that the cut lies in ends there, with what came to it since the stream was cut.
            let mut ids: BTreeSet<RecordId> = self.sink.inside().durable.iter().map(Record::id).collect();
            ids.retain(|id| id.sequence > fork.at && !self.open.contains(id));
            for id in ids {
                if !self.settled(id) {
                    self.allow(id);
                }
            }
            // Restored from a backup while it was asked about, what was lost stands again.
            let again = self.world.state().server.forked > self.flush;
            for id in &fork.orphaned {
                // It stays in the sink, and comes again if a backup brings its message back.
                self.open.remove(id);
                if again || self.world.get(id.sequence).is_none_or(|message| message.published != id.published) {
                    self.allow(*id);
                }
            }
            if self.times_lie() {
                self.allow_all_above(None);
            }
            self.floor = 0;
        }
        // Where acks remove messages, a flush asks no more than its own need.
        let asked = all || !self.world.state().work_queue;
        if permits.unknown().is_none() && permits.fork().is_none() && asked {
            self.verified = self.flush;
        }
        let settled: Vec<RecordId> = permits.acks().iter().filter(|id| self.open.remove(id)).copied().collect();
        self.boundaries.extend(settled.iter().max());
        self.audit(guard)
    }

    /// A guard was opened.
    pub(crate) fn opened<S>(&mut self, guard: &Guard<S>) -> Result<(), Broken> {
        self.observe();
        let distrusted = matches!(guard.report().trust, Trust::Through(_) | Trust::Nothing);
        // Where nothing was archived and no message tells which stream archiving began in, its creation time does.
        let unsure = guard.report().created.is_some() && self.boundaries.is_empty();
        if distrusted && self.cuts == 0 && !unsure && !self.world.state().server.brought_back {
            return broken(Law::ForkWithoutCause, format!("{:?}", guard.report()));
        }
        self.verified = self.flush;
        self.untold(guard.coverage());
        if matches!(guard.report().trust, Trust::New | Trust::Damaged) {
            self.began = self.world.state().server.dropped.len();
        }
        let origin = guard.report().origin;
        let adopted = guard.coverage().is_empty() && self.adopted != Some(origin);
        if adopted && origin > 1 {
            // Archiving begins where the consumer stood, which is somebody's word, also for an opening that died.
            self.adopted = Some(origin);
            let all = self.world.all(self.prefix());
            self.theirs.extend(all.iter().map(Record::id).filter(|id| id.sequence < origin));
        }
        let claims = self.sink.inside().recover != Recover::Unknown;
        let removals = self.world.state().server.removals;
        let cut = self.cuts > 0;
        if (claims && self.times_lie()) || (cut && distrusted && self.times_lie()) || (cut && claims && removals) {
            // Claims that share sequences are told apart by their times; where one of an older life is gone from the stream,
            // it is not told apart at all.
            self.allow_all_above(None);
        }
        if matches!(self.sink.inside().recover, Recover::Exactly(_)) {
            // What it does not name itself is forgotten, witnesses too.
            self.boundaries = guard.coverage().spans().map(|span| span.witness.id).collect();
        }
        self.audit(guard)
    }

    /// Whether a record may stand in a span by its sequence and outside its times: then the span is cut, and what is above
    /// comes again.
    fn times_lie(&self) -> bool {
        let state = self.world.state();
        state.server.stepped_back || state.server.brought_back
    }

    /// What must hold whenever the guard was asked.
    fn audit<S>(&mut self, guard: &Guard<S>) -> Result<(), Broken> {
        let counters = guard.counters();
        if counters.spans_forgotten > self.forgotten {
            self.forgotten = counters.spans_forgotten;
            self.ever_forgot = true;
        }
        if guard.spans() > 400 {
            return broken(Law::Spans, format!("{} spans", guard.spans()));
        }
        // Where the stream's first message is gone, the floor follows it, and that may come back.
        let whole = self.first_sequence() <= guard.report().origin.max(1);
        let brings_back = self.world.state().work_queue;
        // As long as nothing is archived it says where archiving begins, which may turn out to be lower.
        let counts = !guard.coverage().is_empty();
        if guard.floor() < self.floor && counts && whole && self.whole && self.cuts == 0 && !brings_back {
            return broken(Law::Floor, format!("the floor fell from {} to {}", self.floor, guard.floor()));
        }
        // Of a fork that nobody could know of the floor knows nothing either.
        self.floor = if self.in_the_dark() { 0 } else { guard.floor() };
        self.whole = whole;
        self.claims(guard.coverage(), "coverage")?;
        self.twice()
    }

    fn first_sequence(&self) -> u64 {
        let state = self.world.state();
        state.messages.keys().next().copied().unwrap_or(state.last + 1)
    }

    /// Whether the stream got another history that nobody could know of when it was last asked.
    fn in_the_dark(&self) -> bool {
        self.world.state().server.forked > self.verified
    }

    fn claims(&mut self, coverage: &Coverage, whose: &str) -> Result<(), Broken> {
        if self.in_the_dark() {
            return Ok(());
        }
        let missing = self.missing(Some(coverage), |books, id, message| {
            coverage.find(id.sequence).is_some() && !books.held(id, message)
        });
        let Some(id) = missing else { return Ok(()) };
        broken(
            self.law(id, Law::Claim),
            format!("{whose} {:?} holds {id}, the sink does not", coverage.find(id.sequence)),
        )
    }

    /// The first message of the source for which this holds, but for the known limit.
    fn missing(
        &mut self,
        coverage: Option<&Coverage>,
        wanted: impl Fn(&Self, RecordId, &Message) -> bool,
    ) -> Option<RecordId> {
        let mut found = Vec::new();
        self.world.find(self.prefix(), |id, message| {
            if wanted(self, id, message) {
                found.push(id);
            }
            false
        });
        for id in found.into_iter().filter(|id| !self.excused.contains(id)).collect::<Vec<_>>() {
            if !self.below_origin(id)
                && !self.came_back(id)
                && !coverage.is_some_and(|coverage| self.beyond_knowing(coverage, id))
            {
                return Some(id);
            }
            self.excused.insert(id);
        }
        None
    }

    /// The known limit: what was lost before it was archived and comes back with a backup, below a record that was archived
    /// before the loss: a sink that says which records it holds speaks for that one alone.
    fn came_back(&self, id: RecordId) -> bool {
        self.cuts > 1 && self.sink.inside().tells.is_some() && self.world.state().server.restored.contains(&id)
    }

    /// The known limit: of a work queue that others read before nothing below the origin is left, nor of what is archived, so
    /// that a tail which is lost to below it goes unnoticed.
    fn below_origin(&self, id: RecordId) -> bool {
        let state = self.world.state();
        let lost = state.server.cuts.iter().any(|through| *through < id.sequence);
        state.work_queue && lost && self.adopted.is_some_and(|origin| id.sequence < origin)
    }

    /// The known limit: where the newest record of a span is gone, its times speak for it, and a clock that was set back
    /// makes them lie.
    fn beyond_knowing(&self, coverage: &Coverage, id: RecordId) -> bool {
        let lies = self.world.state().server.stepped_back && self.cuts > 0;
        let silent = |span: &Span| span.knows(id.published) && self.world.get(span.last).is_none();
        coverage.find(id.sequence).is_some_and(|span| lies || silent(span))
    }

    fn twice(&self) -> Result<(), Broken> {
        // What was forgotten at the limit is written again, and may be forgotten again. After a cut a span knows its records
        // only by narrowed times; where the clock stepped back as well, any of them may come again, more than once.
        if self.ever_forgot || (self.cuts > 0 && self.world.state().server.stepped_back) {
            return Ok(());
        }
        // What a sink claims and the stream has let go is not taken from its claim again; if a power cut brings the message
        // back, it is written again.
        let exact = matches!(self.sink.inside().recover, Recover::Exactly(_));
        if exact && self.world.state().server.brought_back {
            return Ok(());
        }
        for (id, count) in self.sink.repeated() {
            if count > 1 + self.allowed.get(&id).copied().unwrap_or(0) && !self.split(id) {
                return broken(Law::Twice, format!("{id} is durable {count} times"));
            }
        }
        Ok(())
    }

    /// Whether the claim that spoke for this record spoke for one of another life as well, and fell as a whole.
    fn split(&self, id: RecordId) -> bool {
        let last = self.world.last();
        let replaced = |id: &RecordId| match self.world.get(id.sequence) {
            Some(message) => message.published != id.published,
            None => id.sequence > last,
        };
        let settled = self.settled(id);
        let inside = self.sink.inside();
        inside.recover != Recover::Unknown
            && !settled
            && inside.files.iter().any(|(_, ids)| ids.contains(&id) && ids.iter().any(replaced))
    }

    /// The law that a message which is neither durable nor reported breaks.
    fn law(&self, id: RecordId, law: Law) -> Law {
        if self.sink.inside().rejected.contains(&id) { Law::Rejected } else { law }
    }

    fn prefix(&self) -> &str {
        if self.source.filters().is_empty() { "" } else { "orders." }
    }

    /// What the server made of the acks that were sent, and of requests for a consumer.
    pub(crate) fn acked(&mut self) -> Result<(), Broken> {
        let acked = std::mem::take(&mut self.world.state().server.acked);
        if acked.is_empty() {
            return Ok(());
        }
        let durable = self.durable();
        // The known limit: a fork that no event tells of, between the verification of a flush and its acks.
        let blind = self.world.state().server.forked_unnoticed > self.flush;
        for ack in acked {
            let covered =
                durable.as_ref().is_some_and(|checkpoint| checkpoint.coverage.find(ack.meant.sequence).is_some());
            // What was forgotten at the limit, loudly, no checkpoint knows; and what is gone from the stream nobody misses.
            let stands = self.world.get(ack.meant.sequence).is_some() || !ack.reached.is_empty();
            if !covered && stands && self.forgotten == 0 && !self.theirs.contains(&ack.meant) {
                return broken(Law::AckBeforeCheckpoint, format!("{} is acked, the disk does not know it", ack.meant));
            }
            for (id, message) in ack.reached {
                if id.sequence == ack.meant.sequence && id != ack.meant && !blind {
                    return broken(Law::AckOfAnotherLife, format!("{} reached {id}", ack.meant));
                }
                if self.held(id, &message) {
                    continue;
                }
                let limit = durable.as_ref().is_some_and(|known| self.beyond_knowing(&known.coverage, id));
                if !blind && !limit && !self.excused.contains(&id) {
                    return broken(self.law(id, Law::Lost), format!("{id} is acked by {} and not durable", ack.meant));
                }
                self.excused.insert(id);
            }
        }
        Ok(())
    }

    /// The checkpoint that would survive a power cut.
    fn durable(&self) -> Option<Checkpoint> {
        let (version, body) = SimStore::durable(&self.disk, &self.source)?;
        Checkpoint::decode(version, &body).ok()
    }

    /// A delivery is about to be taken.
    pub(crate) fn pulls(&self) -> Result<(), Broken> {
        if self.owes_move { broken(Law::MoveFirst, "pulled after a fork, before the move") } else { Ok(()) }
    }

    /// Another consumer took over: one that was just made, or one of ours that stands where it would be made, or below.
    pub(crate) const fn switched(&mut self) {
        self.owes_move = false;
    }

    /// Consumers that were made, or reset, since.
    pub(crate) fn begun(&mut self) -> Result<(), Broken> {
        let begun: Vec<(u64, u64)> = self.world.state().server.begun[self.begun..].to_vec();
        self.begun += begun.len();
        self.owes_move &= begun.is_empty();
        if self.in_the_dark() {
            return Ok(());
        }
        let forked = self.world.state().server.forked;
        for (start, _) in begun.into_iter().filter(|(_, stamp)| *stamp > forked) {
            // One that is with the sink is looked for again when that is gone.
            let passed = |books: &Self, id: RecordId, message: &Message| {
                id.sequence < start && !books.held(id, message) && !books.open.contains(&id)
            };
            let durable = self.durable();
            if let Some(id) = self.missing(durable.as_ref().map(|known| &known.coverage), passed) {
                return broken(Law::BeginsAbove, format!("the consumer begins at {start}, {id} is not archived"));
            }
        }
        Ok(())
    }

    /// Every message of the source that the stream holds is in the sink.
    pub(crate) fn complete(&mut self) -> Result<(), Broken> {
        self.twice()?;
        if self.world.find(self.prefix(), |id, message| !self.held(id, message)).is_none() {
            return Ok(());
        }
        let durable = self.durable();
        let lost = |books: &Self, id: RecordId, message: &Message| !books.held(id, message);
        match self.missing(durable.as_ref().map(|known| &known.coverage), lost) {
            Some(id) => broken(self.law(id, Law::Lost), format!("{id} was never archived")),
            None => Ok(()),
        }
    }
}
