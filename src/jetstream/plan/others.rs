//! Whether somebody else takes deliveries of the consumer. Pure.

/// Counts the deliveries of one session that went elsewhere.
///
/// A consumer numbers its deliveries. Those that it made since the first check of a session came on this subscription, or
/// went to another one. What is still on its way is not counted: a number counts once a later one came, or once nothing was
/// left to take long after the consumer had given it out. One look is not enough all the same: only deliveries that went
/// elsewhere between each of two checks in a row, on one connection and one instance of the consumer, are somebody's.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// How many deliveries the consumer had made at the first check.
    base: Option<u64>,
    /// The same at the check before.
    before: u64,
    /// The highest number that must have come by now, if it was to come here.
    due: u64,
    /// How many came here since the first check.
    taken: u64,
    /// How many had gone elsewhere at the check before.
    lost: u64,
    /// Nothing came since a delivery was asked for.
    asked: bool,
    /// Nothing was left to take at some moment since the check before.
    drained: bool,
    /// In how many checks in a row some had gone elsewhere.
    seen: u32,
    told: bool,
}

impl Others {
    /// A delivery of this number came.
    pub(super) fn took(&mut self, number: u64) {
        self.asked = false;
        if let Some(base) = self.base
            && number > base
        {
            self.taken += 1;
            self.due = self.due.max(number);
        }
    }

    /// A delivery is asked for.
    pub(super) const fn asks(&mut self) {
        self.asked = true;
    }

    /// The driver is done with what it was told to do: if that was to ask, and nothing came, nothing is left to take.
    pub(super) const fn done(&mut self) {
        if std::mem::replace(&mut self.asked, false) {
            self.drained = true;
        }
    }

    /// The consumer has made so many deliveries by now. Says how many of them went elsewhere, once, when it is sure that
    /// somebody takes them.
    pub(super) fn check(&mut self, deliveries: u64) -> Option<u64> {
        let Some(base) = self.base else {
            self.base = Some(deliveries);
            self.before = deliveries;
            self.due = deliveries;
            self.drained = false;
            return None;
        };
        if self.drained {
            self.due = self.due.max(self.before);
        }
        self.before = deliveries;
        self.drained = false;
        let lost = self.due.saturating_sub(base).saturating_sub(self.taken);
        let more = lost > self.lost;
        self.lost = lost;
        self.seen = if more { self.seen.saturating_add(1) } else { 0 };
        let sure = self.seen >= 2 && !self.told;
        self.told |= sure;
        sure.then_some(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Others {
        fn drained(&mut self) {
            self.asks();
            self.done();
        }
    }

    /// After a first check at this number.
    fn begun(base: u64) -> Others {
        let mut others = Others::default();
        assert_eq!(others.check(base), None);
        others
    }

    #[test]
    fn gaps_in_two_checks_in_a_row_are_somebody_elses() {
        let mut others = begun(10);
        for number in [11, 13, 14] {
            others.took(number);
        }
        assert_eq!(others.check(14), None, "seen once");
        for number in [15, 17, 18, 20] {
            others.took(number);
        }
        assert_eq!(others.check(20), Some(3));
        others.took(22);
        assert_eq!(others.check(22), None, "said once in a session");
    }

    #[test]
    fn what_was_given_out_before_the_first_check_hides_no_gap() {
        let mut others = begun(10);
        for number in [10, 12] {
            others.took(number);
        }
        assert_eq!(others.check(12), None);
        others.took(14);
        assert_eq!(others.check(14), Some(2));
    }

    #[test]
    fn one_loss_is_nobodys() {
        let mut others = begun(10);
        others.took(11);
        others.drained();
        assert_eq!(others.check(12), None, "12 may be on its way");
        others.drained();
        assert_eq!(others.check(12), None, "12 is lost");
        others.took(13);
        assert_eq!(others.check(13), None, "and is not counted again when the next one shows the gap");
        others.took(14);
        assert_eq!(others.check(14), None);
        others.took(16);
        assert_eq!(others.check(16), None, "another one, much later");
    }

    #[test]
    fn one_who_takes_everything_is_seen_too() {
        let mut others = begun(10);
        others.drained();
        assert_eq!(others.check(20), None);
        others.drained();
        assert_eq!(others.check(30), None, "seen once");
        others.drained();
        assert_eq!(others.check(40), Some(20));
    }

    #[test]
    fn what_waits_in_the_buffer_is_not_lost() {
        let mut others = begun(10);
        // A flush takes longer than three checks: nothing is taken, and nobody has seen the buffer empty.
        for deliveries in [500, 1_000, 1_000] {
            assert_eq!(others.check(deliveries), None);
        }
        for number in 11..=1_000 {
            others.took(number);
        }
        others.drained();
        assert_eq!((others.check(1_000), others.check(1_000)), (None, None));
    }

    #[test]
    fn what_an_earlier_session_lost_counts_not() {
        let mut others = Others::default();
        others.took(5);
        others.took(9);
        assert_eq!(others.check(12), None);
        for number in [10, 12, 13] {
            others.took(number);
        }
        others.drained();
        assert_eq!((others.check(13), others.check(13)), (None, None), "11 was given out before the first check");
    }
}
