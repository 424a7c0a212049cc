//! Deliberate faults, to see that the simulation finds them. Outside tests there are none.

/// A mistake that somebody could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    AckBeforeCheckpoint,
    FloorAsHighWater,
    TrustCreated,
    NoVerification,
    OnlySavedWitness,
    OldAckersKept,
    OldDeliveriesAccepted,
    AcksAcrossReconnect,
    AdjacentAcrossSessions,
    MergeOverBrokenChain,
    TrustAckFloor,
    JumpToUnverifiedFloor,
    FailedSyncIgnored,
    NoRewriteAtOpening,
    ClaimUnverified,
    CutForgetsNewSpans,
    FirstSpanForgotten,
    WitnessBelowForSkip,
    EmptyTailClosed,
    PreviousWitnessNotRead,
    GoneIsEqual,
    GoneIsUnknown,
    ForeignTimesIgnored,
    HeldWrittenAgain,
    OldSessionCovered,
    OneWitnessForClaim,
    TermOnAckAll,
    MoveForgotten,
    SeamsIgnored,
    GapClosedUnasked,
    MoveAboveNewest,
    AckAllAboveFloor,
    SlotOverwritten,
    RenameNotSynced,
    LinkWithoutRecord,
    LeftoverNotFlushed,
    OriginKept,
    DoneUnreported,
    SinkBelievedUnread,
    TakenNotKeptAlive,
    WaitingNotKeptAlive,
    NamesNeverSwitched,
    RedeliveriesAreElsewhere,
    DroppedUntold,
}

#[cfg(test)]
impl Fault {
    /// Those that whole lives find.
    pub(crate) const ALL: &[Self] = &[
        Self::AckBeforeCheckpoint,
        Self::FloorAsHighWater,
        Self::TrustCreated,
        Self::NoVerification,
        Self::OnlySavedWitness,
        Self::OldAckersKept,
        Self::OldDeliveriesAccepted,
        Self::AcksAcrossReconnect,
        Self::AdjacentAcrossSessions,
        Self::MergeOverBrokenChain,
        Self::TrustAckFloor,
        Self::JumpToUnverifiedFloor,
        Self::FailedSyncIgnored,
        Self::NoRewriteAtOpening,
        Self::ClaimUnverified,
        Self::CutForgetsNewSpans,
        Self::FirstSpanForgotten,
        Self::EmptyTailClosed,
        Self::PreviousWitnessNotRead,
        Self::GoneIsEqual,
        Self::GoneIsUnknown,
        Self::HeldWrittenAgain,
        Self::OldSessionCovered,
        Self::OneWitnessForClaim,
        Self::TermOnAckAll,
        Self::MoveForgotten,
        Self::SeamsIgnored,
        Self::GapClosedUnasked,
        Self::MoveAboveNewest,
        Self::AckAllAboveFloor,
        Self::SlotOverwritten,
        Self::LinkWithoutRecord,
        Self::LeftoverNotFlushed,
        Self::OriginKept,
        Self::DoneUnreported,
        Self::SinkBelievedUnread,
        Self::TakenNotKeptAlive,
        Self::WaitingNotKeptAlive,
        Self::NamesNeverSwitched,
        Self::RedeliveriesAreElsewhere,
    ];
}

#[cfg(test)]
thread_local! {
    static CURRENT: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// From now on this mistake is made on this thread.
#[cfg(test)]
pub(crate) fn make(fault: Option<Fault>) {
    CURRENT.set(fault);
}

/// Whether this mistake is being made.
#[cfg(test)]
pub(crate) fn is(fault: Fault) -> bool {
    CURRENT.get() == Some(fault)
}

/// Whether this mistake is being made: never.
#[cfg(not(test))]
pub(crate) const fn is(_: Fault) -> bool {
    false
}
